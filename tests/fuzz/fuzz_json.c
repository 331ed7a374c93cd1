// libFuzzer: any bytes as JSON. What the strict scan accepts the tree builder must accept too, with integers as written.
#include <stdlib.h>

#include "formats/base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void walk(const cJSON *item) {
    if (atsi_json_is_integer(item) && !cJSON_IsNumber(item)) abort();
    for (const cJSON *child = item->child; child; child = child->next) walk(child);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    cJSON *tree;
    struct atsi_error err;
    enum atsi_status status = atsi_json_parse((const char *)data, size, &tree, &err);
    if (status == ATSI_OK)
        walk(tree);
    else if (status != ATSI_BAD_INPUT)
        abort();
    cJSON_Delete(tree);
    return 0;
}
