"""Gaps between attention scores at which float32 rounds the softmax, and the shares of rows that flag a block."""

from __future__ import annotations

# exp(-gap) is lost beside 1 from 24 ln 2 on, and below the smallest normal float32 from 126 ln 2 on.
SATURATED_GAP, UNDERFLOW_GAP = 16.6, 87.3
# A block is flagged where a larger share of its rows has such a gap.
SATURATED_ROWS, UNDERFLOW_ROWS = 0.01, 0.001
# Gaps are counted in bins of equal width on a logarithmic scale; what lies outside is in the first and the last.
LOWEST_GAP, HIGHEST_GAP, GAP_BINS = 1e-3, 1e5, 64
