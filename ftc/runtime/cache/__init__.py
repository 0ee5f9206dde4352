"""The expert cache: its memory, who stays in it, and how misses are shared between link and CPU."""
