// causal_conv: depthwise convolution over each sequence, with the last width - 1 inputs kept in a state slot.

// True when the slot holds a state; -1 means none. A number outside the live slots is a fault.
inline bool slot_ok(int32_t slot, const int32_t* state) { return slot >= -1 && slot < state[0]; }

constexpr int kConvBlock = 64;  // channels of a task: their window of inputs stays in registers and L1

template <class TX, class TP>
inline void conv_block(const CausalConv& a, int64_t s, int64_t channel, int channels) {
  int64_t begin = a.offsets[s], end = a.offsets[s + 1], back = a.width - 1;
  int32_t in = a.state_in[s], out = a.state_out[s];
  TX* to = (TX*)a.out + channel;
  if (!slot_ok(in, a.state) || !slot_ok(out, a.state)) {
    for (int64_t t = begin; t < end; t++)
      for (int c = 0; c < channels; c++) put(to + t * a.channels + c, NAN);
    return;
  }
  float* taps = scratch_of<float>(kOwn, (a.width + 1 + back) * kConvBlock);
  float *bias = taps + a.width * kConvBlock, *old = bias + kConvBlock;  // old: [back][kConvBlock], newest last
  with_type(a.weight_dtype, [&](auto* type) {
    auto* weight = (decltype(type))a.weight + channel * a.width;
    for (int c = 0; c < kConvBlock; c++)
      for (int64_t j = 0; j < a.width; j++)
        taps[j * kConvBlock + c] = c < channels ? to_float(weight[c * a.width + j]) : 0;
  });
  with_type(a.bias_dtype, [&](auto* type) {
    for (int c = 0; c < kConvBlock; c++)
      bias[c] = a.bias && c < channels ? to_float(((decltype(type))a.bias)[channel + c]) : 0;
  });
  auto slot = [&](int32_t number) {
    return (TP*)a.pool + ((number * a.layers + a.layer) * a.channels + channel) * back;
  };
  for (int c = 0; c < kConvBlock; c++)
    for (int64_t j = 0; j < back; j++)
      old[j * kConvBlock + c] = in >= 0 && c < channels ? to_float(slot(in)[c * back + j]) : 0;
  const TX* x = (const TX*)a.x + channel;
  for (int64_t t = begin; t < end; t++)
    for (int c = 0; c < channels; c += W) {
      int rest = channels - c < W ? channels - c : W;
      F total = load(bias + c);
      for (int64_t j = 0; j < a.width; j++) {
        int64_t from = t - back + j;
        F value = from < begin ? load(old + (from - begin + back) * kConvBlock + c)
                               : load_n(x + from * a.x_stride + c, rest);
        total = fma(load(taps + j * kConvBlock + c), value, total);
      }
      if (a.silu) total = total * sigmoid(total);
      store_n(to + t * a.channels + c, total, rest);
    }
  if (out < 0) return;
  for (int c = 0; c < channels; c++)
    for (int64_t j = 0; j < back; j++) {
      int64_t from = end - back + j;
      float value = from < begin ? old[(from - begin + back) * kConvBlock + c] : to_float(x[from * a.x_stride + c]);
      put(slot(out) + c * back + j, value);
    }
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
