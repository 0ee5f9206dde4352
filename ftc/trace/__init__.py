"""From a spec to regions and a schedule; the same interpreter runs them eagerly."""
