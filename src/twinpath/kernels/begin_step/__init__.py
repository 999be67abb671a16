"""What every decode step starts with: embedding rows, the first norm's sums, and where each row's context is split."""
