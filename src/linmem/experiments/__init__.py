"""The paper's experiments, and the controls they need."""
