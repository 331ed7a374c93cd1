// load: keeps parts of this machine busy, so that other programs can be watched under load.
//
//   load [--cpu PERCENT] [--threads N] [--memory GBPS|PERCENT%] [--gpu PERCENT] [--pcie PERCENT]
//        [--vram SIZE | --vram-leave SIZE] [--seconds S]
//
// Prints "on" when everything runs, and at the end (after --seconds, or at the first SIGINT or SIGTERM) one line with what was
// reached. Exit code 1 when a part cannot run here, 2 for bad usage.
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/clock.h"
#include "formats/base/size.h"
#include "tools/load/load.h"

static const char usage[] =
    "usage: load [options]                at least one of --cpu, --memory, --gpu, --pcie, --vram, --vram-leave\n"
    "  --cpu PERCENT        arithmetic on every thread for this share of the time\n"
    "  --memory GBPS        read memory at this many GB/s; with a % sign: of what all threads read unhindered\n"
    "  --threads N          of --cpu, and as many again of --memory; default: all processors that it may use\n"
    "  --gpu PERCENT        kernels on all of the first card for this share of the time\n"
    "  --pcie PERCENT       copies to the card for this share of the time\n"
    "  --vram SIZE          take this much of the card's memory, as it becomes free\n"
    "  --vram-leave SIZE    take all of the card's free memory but this much\n"
    "  --seconds S          default: until a signal comes\n";

static atomic_bool stop;

static void on_signal(int number) {
    (void)number;
    atomic_store(&stop, true);
}

// ---- options ------------------------------------------------------------------------------------------------------

static bool parse_number(const char *text, double low, double high, double *out, char *unit) {
    char *end = NULL;
    double value = strtod(text, &end);
    *unit = *end;
    if (end == text || (*end && end[1]) || !(value >= low && value <= high)) return false;
    *out = value;
    return true;
}

static enum atsi_status parse_percent(const char *name, const char *text, double *share, struct atsi_error *err) {
    double percent;
    char unit;
    if (!parse_number(text, 0, 100, &percent, &unit) || (unit && unit != '%'))
        return atsi_fail(err, ATSI_BAD_INPUT, "%s: \"%s\" is no percentage from 0 to 100", name, text);
    *share = percent / 100;
    return ATSI_OK;
}

static enum atsi_status parse_memory(const char *text, struct load_params *p, struct atsi_error *err) {
    double value;
    char unit;
    if (!parse_number(text, 0, 1e5, &value, &unit) || (unit && unit != '%') || (unit == '%' && value > 100))
        return atsi_fail(err, ATSI_BAD_INPUT, "--memory: \"%s\" is neither GB/s nor a percentage like 40%%", text);
    p->memory_gb_s = unit ? 0 : value;
    p->memory_share = unit ? value / 100 : 0;
    return ATSI_OK;
}

static enum atsi_status parse_size(const char *name, const char *text, uint64_t *out, struct atsi_error *err) {
    if (atsi_size_parse(text, out)) return ATSI_OK;
    return atsi_fail(err, ATSI_BAD_INPUT, "%s: \"%s\" is no size like 2G or 512M", name, text);
}

static enum atsi_status parse_option(const char *name, const char *text, struct load_params *p,
                                     struct atsi_error *err) {
    double number;
    char unit;
    if (!strcmp(name, "--cpu")) return parse_percent(name, text, &p->cpu_share, err);
    if (!strcmp(name, "--gpu")) return parse_percent(name, text, &p->gpu_share, err);
    if (!strcmp(name, "--pcie")) return parse_percent(name, text, &p->link_share, err);
    if (!strcmp(name, "--memory")) return parse_memory(text, p, err);
    if (!strcmp(name, "--vram")) return parse_size(name, text, &p->vram_bytes, err);
    if (!strcmp(name, "--vram-leave")) return parse_size(name, text, &p->vram_leave_bytes, err);
    if (!strcmp(name, "--threads")) {
        if (!parse_number(text, 1, 4096, &number, &unit) || unit || number != (int)number)
            return atsi_fail(err, ATSI_BAD_INPUT, "--threads: \"%s\" is no whole number from 1 to 4096", text);
        p->n_threads = (int)number;
        return ATSI_OK;
    }
    if (!parse_number(text, 0.001, 1e6, &p->seconds, &unit) || unit)
        return atsi_fail(err, ATSI_BAD_INPUT, "--seconds: \"%s\" is no number of seconds", text);
    return ATSI_OK;
}

static bool is_option(const char *name) {
    static const char *const names[] = {"--cpu",  "--memory", "--threads",    "--gpu",
                                        "--pcie", "--vram",   "--vram-leave", "--seconds"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i], name)) return true;
    return false;
}

// Those that this process may run on.
static int n_processors(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

static enum atsi_status parse_options(int argc, char **argv, struct load_params *p, struct atsi_error *err) {
    *p = (struct load_params){.n_threads = n_processors(), .vram_leave_bytes = UINT64_MAX};
    for (int i = 1; i < argc; i += 2) {
        if (!is_option(argv[i])) return atsi_fail(err, ATSI_BAD_INPUT, "%s: no such option", argv[i]);
        if (i + 1 == argc) return atsi_fail(err, ATSI_BAD_INPUT, "%s: a value is missing", argv[i]);
        ATSI_TRY(parse_option(argv[i], argv[i + 1], p, err));
    }
    if (p->vram_bytes > 0 && p->vram_leave_bytes != UINT64_MAX)
        return atsi_fail(err, ATSI_BAD_INPUT, "--vram and --vram-leave exclude each other");
    if (p->cpu_share <= 0 && p->memory_gb_s <= 0 && p->memory_share <= 0 && !load_needs_gpu(p))
        return atsi_fail(err, ATSI_BAD_INPUT, "nothing to do: see load --help");
    return ATSI_OK;
}

// ---- the load -----------------------------------------------------------------------------------------------------

static void wait_for_end(double seconds) {
    double end_us = atsi_clock_us() + seconds * 1e6;
    while (!atomic_load(&stop) && (seconds <= 0 || atsi_clock_us() < end_us))
        load_sleep_until_us(atsi_clock_us() + LOAD_PERIOD_US);
}

static void print_result(const struct load_params *p, const struct load_result *r, double seconds) {
    printf("load: %.1f s", seconds);
    if (p->cpu_share > 0) printf(", CPU %.1f %% of %d threads", 100 * r->cpu_share, p->n_threads);
    if (p->memory_gb_s > 0 || p->memory_share > 0) printf(", memory %.1f GB/s", r->memory_gb_s);
    if (p->gpu_share > 0) printf(", GPU %.1f %%", 100 * r->gpu_share);
    if (p->link_share > 0) printf(", link %.1f GB/s", r->link_gb_s);
    if (r->vram_bytes > 0) printf(", VRAM %.0f MiB", (double)r->vram_bytes / 0x1p20);
    putchar('\n');
}

static enum atsi_status put_load(const struct load_params *p, struct atsi_error *err) {
    struct load_cpu *cpu = NULL;
    struct load_gpu *gpu = NULL;
    struct load_result result = {0};
    enum atsi_status status = load_needs_gpu(p) ? load_gpu_start(&gpu, p, &stop, err) : ATSI_OK;
    if (status == ATSI_OK) status = load_cpu_start(&cpu, p, &stop, err);
    double started_us = atsi_clock_us();
    if (status == ATSI_OK) {
        puts("on");
        fflush(stdout);
        wait_for_end(p->seconds);
    }
    atomic_store(&stop, true);
    double seconds = (atsi_clock_us() - started_us) * 1e-6;
    load_cpu_finish(cpu, &result);
    load_gpu_finish(gpu, &result);
    if (status == ATSI_OK) print_result(p, &result, seconds);
    return status;
}

int main(int argc, char **argv) {
    struct load_params params;
    struct atsi_error err = {0};
    if (argc == 2 && !strcmp(argv[1], "--help")) {
        fputs(usage, stdout);
        return 0;
    }
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    enum atsi_status status = parse_options(argc, argv, &params, &err);
    if (status == ATSI_OK) status = put_load(&params, &err);
    if (status != ATSI_OK) fprintf(stderr, "load: %s\n", err.text);
    return status;
}
