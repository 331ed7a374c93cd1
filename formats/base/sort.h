// sort.h: numbers in order, for medians and quantiles.
#ifndef ATSI_FORMATS_BASE_SORT_H
#define ATSI_FORMATS_BASE_SORT_H

#include <stddef.h>

// The smallest first. None of them is NaN.
void atsi_sort_doubles(double *values, size_t n);

#endif
