"""The first half of an MLP: norm scale, gate and up projections, activation, product."""
