#include "planner/output_name.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void strip(char *name, const char *ending) {
    size_t length = strlen(name), n = strlen(ending);
    if (length > n && !strcmp(name + length - n, ending)) name[length - n] = 0;
}

// "-00001-of-00003" at the end.
static void strip_split(char *name) {
    enum {
        TAIL = 15
    };
    size_t length = strlen(name);
    if (length <= TAIL) return;
    char *tail = name + length - TAIL;
    unsigned part, count;
    int end = 0;
    if (sscanf(tail, "-%5u-of-%5u%n", &part, &count, &end) == 2 && end == TAIL) *tail = 0;
}

char *atsi_output_name(const char *input_path) {
    const char *slash = strrchr(input_path, '/');
    char *stem = strdup(slash ? slash + 1 : input_path), *name = NULL;
    if (!stem) return NULL;
    strip(stem, ".gguf");
    strip(stem, ".atsp");
    strip_split(stem);
    if (asprintf(&name, "%s.atsp", stem) < 0) name = NULL;
    free(stem);
    return name;
}
