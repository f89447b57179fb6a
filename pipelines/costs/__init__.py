"""What a fit costs: measured runs, a model fitted on them, and what it says of larger ones."""
