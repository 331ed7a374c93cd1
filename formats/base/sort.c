#include "formats/base/sort.h"

#include <stdlib.h>

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void atsi_sort_doubles(double *values, size_t n) { qsort(values, n, sizeof *values, compare); }
