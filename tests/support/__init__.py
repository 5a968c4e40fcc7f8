"""What the tests share: inputs, oracles with their bounds, and what this machine has."""
