// compare_logits: how far two files of float32 logits [rows, vocab] are apart.
//
//   compare_logits REFERENCE OURS --vocab N [--skip ROWS] [--rows ROWS]
//
// --skip leaves out rows at the start of REFERENCE (files that hold several prompts). Prints one line:
//   rows=48 max_abs=1.2e-05 rms=3.1e-06 rms_median=3.0e-06 kl=2.0e-11 kl_max=… top1=48/48
// rms is of the differences, rms_median that of the median row, kl the mean of KL(reference || ours) over rows, top1 the rows with the same largest logit.
// Exit code 1 when a file cannot be read, is too short, or a value is not finite.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/sort.h"

static float *read_floats(const char *path, long skip, long *n) {
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END)) {
        fprintf(stderr, "%s: cannot be read\n", path);
        exit(1);
    }
    long total = ftell(f) / (long)sizeof(float), wanted = *n > 0 ? *n : total - skip;
    float *values = wanted > 0 && wanted <= total - skip ? malloc((size_t)wanted * sizeof *values) : NULL;
    if (!values || fseek(f, skip * (long)sizeof(float), SEEK_SET) ||
        fread(values, sizeof *values, (size_t)wanted, f) != (size_t)wanted) {
        fprintf(stderr, "%s: %ld floats, wanted %ld after %ld\n", path, total, wanted, skip);
        exit(1);
    }
    fclose(f);
    *n = wanted;
    return values;
}

static double log_sum_exp(const float *x, long n) {
    double best = x[0], sum = 0;
    for (long i = 1; i < n; i++) best = x[i] > best ? x[i] : best;
    for (long i = 0; i < n; i++) sum += exp(x[i] - best);
    return best + log(sum);
}

static long argmax(const float *x, long n) {
    long best = 0;
    for (long i = 1; i < n; i++) best = x[i] > x[best] ? i : best;
    return best;
}

struct distance {
    double max_abs, square_sum, kl_sum, kl_max;
    long n_top1;
};

static void add_row(struct distance *d, const float *a, const float *b, long n) {
    double za = log_sum_exp(a, n), zb = log_sum_exp(b, n), kl = 0;
    for (long i = 0; i < n; i++) {
        double difference = fabs((double)a[i] - b[i]);
        if (!isfinite(difference)) {
            fprintf(stderr, "a value is not finite\n");
            exit(1);
        }
        d->max_abs = difference > d->max_abs ? difference : d->max_abs;
        d->square_sum += difference * difference;
        kl += exp(a[i] - za) * ((a[i] - za) - (b[i] - zb));
    }
    d->kl_sum += kl;
    d->kl_max = kl > d->kl_max ? kl : d->kl_max;
    d->n_top1 += argmax(a, n) == argmax(b, n);
}

int main(int argc, char **argv) {
    long vocab = 0, skip = 0, rows = 0;
    for (int i = 3; i + 1 < argc; i += 2) {
        long value = atol(argv[i + 1]);
        if (!strcmp(argv[i], "--vocab"))
            vocab = value;
        else if (!strcmp(argv[i], "--skip"))
            skip = value;
        else if (!strcmp(argv[i], "--rows"))
            rows = value;
    }
    if (argc < 5 || vocab <= 0) {
        fprintf(stderr, "usage: compare_logits REFERENCE OURS --vocab N [--skip ROWS] [--rows ROWS]\n");
        return 2;
    }
    long n_ours = rows * vocab, n_reference;
    float *ours = read_floats(argv[2], 0, &n_ours);
    n_reference = n_ours;
    float *reference = read_floats(argv[1], skip * vocab, &n_reference);
    rows = n_ours / vocab;
    struct distance d = {0};
    double *row_rms = calloc((size_t)rows, sizeof *row_rms);
    if (!row_rms) return 1;
    for (long r = 0; r < rows; r++) {
        double before = d.square_sum;
        add_row(&d, reference + r * vocab, ours + r * vocab, vocab);
        row_rms[r] = sqrt((d.square_sum - before) / (double)vocab);
    }
    atsi_sort_doubles(row_rms, (size_t)rows);
    printf("rows=%ld max_abs=%.3e rms=%.3e rms_median=%.3e kl=%.3e kl_max=%.3e top1=%ld/%ld\n", rows, d.max_abs,
           sqrt(d.square_sum / ((double)rows * (double)vocab)), row_rms[rows / 2], d.kl_sum / (double)rows, d.kl_max,
           d.n_top1, rows);
    free(row_rms);
    free(reference);
    free(ours);
    return 0;
}
