"""From regions to programs: compiling, artefacts on disk, and what runs them."""
