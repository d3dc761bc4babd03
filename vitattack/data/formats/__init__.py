"""File formats of image data sets: encoded images, arrays, parquet, official layouts."""
