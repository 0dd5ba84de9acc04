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

// A pixel of a map, by its index.
struct Pixel {
  Index column, row, place, c, image;  // place: the index in its plane

  __device__ Pixel(Index i, Index channels, Index height, Index width)
      : column(i % width), row(i / width % height), place(i % (height * width)),
        c(i / (height * width) % channels), image(i / (height * width) / channels) {}

  // Whether rows, or columns, of a bin contain it.
  __device__ bool in_rows(const int* rows) const { return rows[0] <= row && row < rows[1]; }
  __device__ bool in_columns(const int* columns) const {
    return columns[0] <= column && column < columns[1];
  }
};

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
    const Pixel pixel(i, channels, height, width);
    Real total = 0;
    for (Index region = 0; region < regions; ++region) {
      if (bins.images[region] != pixel.image) continue;
      for (Index row = 0; row < bin_rows; ++row) {
        if (!pixel.in_rows(bins.row(region, row))) continue;
        for (Index column = 0; column < bin_columns; ++column) {
          if (!pixel.in_columns(bins.column(region, column))) continue;
          const Index at = ((region * channels + pixel.c) * bin_rows + row) * bin_columns + column;
          if (winners[at] == pixel.place) total += dy[at];
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
    const Pixel pixel(i, channels, height, width);
    Real total = 0;
    for (Index region = 0; region < regions; ++region) {
      const int* rows = bins.row(region, pixel.c / bin_columns % bin_rows);
      const int* columns = bins.column(region, pixel.c % bin_columns);
      if (bins.images[region] != pixel.image) continue;
      if (!pixel.in_rows(rows) || !pixel.in_columns(columns)) continue;
      const Index pixels = (rows[1] - rows[0]) * (columns[1] - columns[0]);
      total += dy[region * channels + pixel.c] / (Real)pixels;
    }
    dx[i] = total;
  }
}
