"""Programs and requests to tokens: caches, scheduling, sampling, and the engine process."""
