"""The paper's evaluation: SPORE, its ablations and the baselines on labelled datasets."""
