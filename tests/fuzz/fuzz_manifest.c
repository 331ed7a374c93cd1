// libFuzzer: any bytes as the manifest of a plan. In a plan file a checksum stands before it; here nothing does.
#include <stdlib.h>

#include "formats/plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// What is read can be written and read again.
static void write_again(const struct atsi_plan *plan) {
    struct atsi_plan again;
    struct atsi_error err;
    char *json;
    size_t size;
    if (atsi_plan_to_json(plan, &json, &size, &err) != ATSI_OK) return;
    if (atsi_plan_from_json(json, size, &again, &err) != ATSI_OK) abort();
    atsi_plan_free(&again);
    free(json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct atsi_plan plan;
    struct atsi_error err;
    if (atsi_plan_from_json((const char *)data, size, &plan, &err) == ATSI_OK) write_again(&plan);
    atsi_plan_free(&plan);
    return 0;
}
