#include "tests/support/tiny_plan.h"

#include "tests/support/check.h"

void tiny_plan_open(struct tiny_plan *t, const char *arch, const struct tiny_change *change, uint32_t chunk) {
    struct gguf_builder g;
    struct atsi_error err;
    struct atsi_content_options options = {.kv_type = ATSI_F16, .chunk = chunk, .command = "test"};
    memset(t, 0, sizeof *t);
    tiny_model(&g, arch, change);
    t->file = gb_finish(&g);
    gb_free(&g);
    check_ok(atsi_gguf_open_memory(&t->gguf, t->file.data, t->file.size, "tiny", &err), err);
    check_ok(atsi_lower(t->gguf, &(struct atsi_lower_options){0}, &t->lowered, &err), err);
    check_ok(atsi_content_make(t->gguf, &t->lowered, &options, &t->plan, &err), err);
}

void tiny_plan_close(struct tiny_plan *t) {
    atsi_plan_free(&t->plan);
    atsi_lowered_free(&t->lowered);
    atsi_gguf_close(t->gguf);
    bytes_free(&t->file);
}
