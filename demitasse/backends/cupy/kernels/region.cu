// Pooling over the bins of regions of interest. Gradients are gathered, so that they are added up in
// the same order every time.
//
// Source: Fast R-CNN, src/caffe/layers/roi_pooling_layer.cu; R-FCN, psroi_pooling_layer.cu.

// Sizes of a map (images, channels, height, width), and of its regions.
#define REGIONS                                                                       \
  Index channels, Index height, Index width, Index regions, Index bin_rows, Index bin_columns

// The bins in memory: the image of each region; begin and end of its rows of bins; of its columns.
struct Bins {
  const int *images, *rows, *columns;
  Index bin_rows, bin_columns;

  __device__ Bins(const int* table, Index regions, Index bin_rows, Index bin_columns)
      : images(table), rows(table + regions), columns(rows + 2 * regions * bin_rows),
        bin_rows(bin_rows), bin_columns(bin_columns) {}

  __device__ const int* row(Index region, Index row) const {
    return rows + 2 * (region * bin_rows + row);
  }
  __device__ const int* column(Index region, Index column) const {
    return columns + 2 * (region * bin_columns + column);
  }
};

__device__ inline bool within(Index place, const int* span) {
  return span[0] <= place && place < span[1];
}

// x (images, channels, height, width) -> y, winners (regions, channels, bin_rows, bin_columns); a
// winner is the index in its plane of the first largest value, or -1 of an empty bin, which is 0.
// count: size of y.
KERNEL region_maxima(const Real* __restrict__ x, const int* __restrict__ table, Real* y, int* winners,
                     Index count, REGIONS, Index has_winners) {
  const Bins bins(table, regions, bin_rows, bin_columns);
  EACH(i, count) {
    const Index region = i / (bin_rows * bin_columns * channels);
    const Index c = i / (bin_rows * bin_columns) % channels;
    const int* rows = bins.row(region, i / bin_columns % bin_rows);
    const int* columns = bins.column(region, i % bin_columns);
    const Real* plane = x + (bins.images[region] * channels + c) * height * width;
    Real best = 0;
    Index winner = -1;
    for (Index row = rows[0]; row < rows[1]; ++row) {
      for (Index column = columns[0]; column < columns[1]; ++column) {
        const Real value = plane[row * width + column];
        // the first NaN counts as the largest value
        if (winner < 0 || value > best || (value != value && best == best)) {
          best = value;
          winner = row * width + column;
        }
      }
    }
    y[i] = best;
    if (has_winners) winners[i] = (int)winner;
  }
}

// winners, dy (regions, channels, bin_rows, bin_columns) -> dx (images, channels, height, width).
// count: size of dx.
KERNEL region_maxima_gradient(const int* __restrict__ winners, const Real* __restrict__ dy,
                              const int* __restrict__ table, Real* __restrict__ dx, Index count,
                              REGIONS) {
  const Bins bins(table, regions, bin_rows, bin_columns);
  EACH(i, count) {
    const Index place = i % (height * width), c = i / (height * width) % channels;
    const Index image = i / (height * width) / channels;
    Real total = 0;
    for (Index region = 0; region < regions; ++region) {
      if (bins.images[region] != image) continue;
      for (Index row = 0; row < bin_rows; ++row) {
        if (!within(place / width, bins.row(region, row))) continue;
        for (Index column = 0; column < bin_columns; ++column) {
          if (!within(place % width, bins.column(region, column))) continue;
          const Index at = ((region * channels + c) * bin_rows + row) * bin_columns + column;
          if (winners[at] == place) total += dy[at];
        }
      }
    }
    dx[i] = total;
  }
}

// x (images, channels, height, width) -> y (regions, channels / bins, bin_rows, bin_columns): the
// mean of each bin, whose channel is its place in the region. count: size of y.
KERNEL region_means(const Real* __restrict__ x, const int* __restrict__ table, Real* __restrict__ y,
                    Index count, REGIONS) {
  const Bins bins(table, regions, bin_rows, bin_columns);
  EACH(i, count) {
    const Index region = i / channels, c = i % channels;
    const int* rows = bins.row(region, c / bin_columns % bin_rows);
    const int* columns = bins.column(region, c % bin_columns);
    const Real* plane = x + (bins.images[region] * channels + c) * height * width;
    Real total = 0;
    for (Index row = rows[0]; row < rows[1]; ++row) {
      for (Index column = columns[0]; column < columns[1]; ++column) {
        total += plane[row * width + column];
      }
    }
    const Index pixels = (rows[1] - rows[0]) * (columns[1] - columns[0]);
    y[i] = pixels > 0 ? total / (Real)pixels : (Real)0;
  }
}

// dy (regions, channels / bins, bin_rows, bin_columns) -> dx (images, channels, height, width).
// count: size of dx.
KERNEL region_means_gradient(const Real* __restrict__ dy, const int* __restrict__ table,
                             Real* __restrict__ dx, Index count, REGIONS) {
  const Bins bins(table, regions, bin_rows, bin_columns);
  EACH(i, count) {
    const Index place = i % (height * width), c = i / (height * width) % channels;
    const Index image = i / (height * width) / channels;
    Real total = 0;
    for (Index region = 0; region < regions; ++region) {
      const int* rows = bins.row(region, c / bin_columns % bin_rows);
      const int* columns = bins.column(region, c % bin_columns);
      if (bins.images[region] != image) continue;
      if (!within(place / width, rows) || !within(place % width, columns)) continue;
      total += dy[region * channels + c] / (Real)((rows[1] - rows[0]) * (columns[1] - columns[0]));
    }
    dx[i] = total;
  }
}
