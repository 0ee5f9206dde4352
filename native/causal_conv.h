// causal_conv: depthwise convolution over each sequence, with the last width - 1 inputs kept in a state slot.

// True when the slot holds a state; -1 means none. A number outside the live slots is a fault.
inline bool slot_ok(int32_t slot, const int32_t* state) { return slot >= -1 && slot < state[0]; }

constexpr int kConvBlock = 64;  // channels of a task

// from [channels][count] to [count][kConvBlock] as float32, and back.
template <class T>
inline void spread(const T* from, int channels, int count, float* to) {
  auto run = [&](auto fixed) {
    int n = fixed.value ? fixed.value : count;
    for (int j = 0; j < n; j++)
      for (int c = 0; c < channels; c++) to[j * kConvBlock + c] = to_float(from[c * n + j]);
  };
  if (count == 3) run(std::integral_constant<int, 3>());
  else if (count == 4) run(std::integral_constant<int, 4>());
  else run(std::integral_constant<int, 0>());
}
template <class T>
inline void gather(const float* from, int channels, int count, T* to) {
  for (int c = 0; c < channels; c++)
    for (int j = 0; j < count; j++) put(to + c * count + j, from[j * kConvBlock + c]);
}

// Rows [begin, end) of two vectors of channels. old: [width - 1][kConvBlock] inputs before, newest last; at the end the
// last ones seen. Width 0: any up to kWidestConv.
template <int Width, class TX>
inline void conv_rows(const CausalConv& a, int64_t begin, int64_t end, int64_t channel, int channels, const float* taps,
                      const float* bias, float* old) {
  const int width = Width ? Width : int(a.width);
  int part[2] = {channels < W ? channels : W, channels < W ? 0 : channels - W < W ? channels - W : W};
  F window[Width ? Width : kWidestConv][2];
  for (int j = 0; j + 1 < width; j++)
    for (int b = 0; b < 2; b++) window[j][b] = load(old + j * kConvBlock + b * W);
  for (int64_t t = begin; t < end; t++)
    for (int b = 0; b < 2 && part[b]; b++) {
      window[width - 1][b] = load_n((const TX*)a.x + t * a.x_stride + channel + b * W, part[b]);
      F total = load(bias + b * W);
      for (int j = 0; j < width; j++) total = fma(load(taps + j * kConvBlock + b * W), window[j][b], total);
      for (int j = 0; j + 1 < width; j++) window[j][b] = window[j + 1][b];
      if (a.silu) total = total * sigmoid(total);
      store_n((TX*)a.out + t * a.channels + channel + b * W, total, part[b]);
    }
  for (int j = 0; j + 1 < width; j++)
    for (int b = 0; b < 2; b++) store(old + j * kConvBlock + b * W, window[j][b]);
}

template <class TX, class TP>
inline void conv_block(const CausalConv& a, int64_t s, int64_t channel, int channels) {
  int64_t begin = a.offsets[s], end = a.offsets[s + 1];
  int32_t in = a.state_in[s], out = a.state_out[s];
  if (!slot_ok(in, a.state) || !slot_ok(out, a.state)) {
    for (int64_t t = begin; t < end; t++)
      for (int c = 0; c < channels; c++) put((TX*)a.out + t * a.channels + channel + c, NAN);
    return;
  }
  int width = int(a.width), back = width - 1;
  float taps[kWidestConv * kConvBlock], old[kWidestConv * kConvBlock], bias[kConvBlock];
  with_type(a.weight_dtype, [&](auto* type) {
    spread((decltype(type))a.weight + channel * width, channels, width, taps);
  });
  with_type(a.bias_dtype, [&](auto* type) {
    for (int c = 0; c < channels; c++) bias[c] = a.bias ? to_float(((decltype(type))a.bias)[channel + c]) : 0;
  });
  auto slot = [&](int32_t number) {
    return (TP*)a.pool + ((number * a.layers + a.layer) * a.channels + channel) * back;
  };
  if (in >= 0) spread((const TP*)slot(in), channels, back, old);
  else memset(old, 0, back * kConvBlock * sizeof(float));
  for (int c = 0; c < channels; c += 2 * W) {
    if (width == 4) conv_rows<4, TX>(a, begin, end, channel + c, channels - c, taps + c, bias + c, old + c);
    else conv_rows<0, TX>(a, begin, end, channel + c, channels - c, taps + c, bias + c, old + c);
  }
  if (out >= 0) gather(old, channels, back, slot(out));
}

// Adds the sequences with rows whose slots are not live to the fault count.
inline void count_slot_faults(int32_t* state, const int32_t* state_in, const int32_t* state_out, const int32_t* offsets,
                              int64_t sequences) {
  for (int64_t s = 0; s < sequences; s++)
    if (offsets[s] < offsets[s + 1] && !(slot_ok(state_in[s], state) && slot_ok(state_out[s], state))) state[1]++;
}

inline void causal_conv(const CausalConv& a) {
  count_slot_faults(a.state, a.state_in, a.state_out, a.offsets, a.sequences);
  int64_t blocks = (a.channels + kConvBlock - 1) / kConvBlock;
  Tasks tasks;
  parallel(a.offsets[a.sequences] * a.channels * a.width > 32768, [&] {
    tasks.run(a.sequences * blocks, [&](int64_t task) {
      int64_t s = task / blocks, channel = task % blocks * kConvBlock;
      if (a.offsets[s] == a.offsets[s + 1]) return;
      int channels = int(a.channels - channel < kConvBlock ? a.channels - channel : kConvBlock);
      with_type(a.x_dtype, [&](auto* tx) {
        with_type(a.pool_dtype, [&](auto* tp) {
          conv_block<std::remove_pointer_t<decltype(tx)>, std::remove_pointer_t<decltype(tp)>>(a, s, channel, channels);
        });
      });
    });
  });
}
