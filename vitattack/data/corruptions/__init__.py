"""Common corruptions made here, for data sets that nobody publishes corrupted."""
