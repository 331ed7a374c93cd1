// libFuzzer: any bytes as routing statistics. Those that are sound are written and read again, and everything that the planner asks of
// them is asked.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "formats/routing.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(bool good) {
    if (!good) abort();
}

static bool is_share(double x) { return x >= 0 && x <= 1 + 1e-9; }

static void ask(const struct atsi_routing_stats *stats) {
    struct atsi_routing_means means;
    struct atsi_error err;
    if (atsi_routing_means_of(stats, 512, &means, &err) != ATSI_OK) return;
    need(is_share(means.eighth_share) && is_share(means.chunk_share) && isfinite(means.reused_share));
}

static void write_again(const struct atsi_routing_stats *stats) {
    struct atsi_routing_stats again;
    struct atsi_error err;
    char *json, *json_again;
    if (atsi_routing_to_json(stats, &json, &err) != ATSI_OK) return;
    need(atsi_routing_parse(json, strlen(json), &again, &err) == ATSI_OK);
    if (atsi_routing_to_json(&again, &json_again, &err) == ATSI_OK) {
        need(strcmp(json, json_again) == 0);
        free(json_again);
    }
    atsi_routing_add(&again, stats);
    ask(&again);
    atsi_routing_stats_free(&again);
    free(json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct atsi_routing_stats stats;
    struct atsi_error err;
    if (atsi_routing_parse((const char *)data, size, &stats, &err) == ATSI_OK) {
        ask(&stats);
        write_again(&stats);
    }
    atsi_routing_stats_free(&stats);
    return 0;
}
