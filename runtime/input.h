// input.h: what atsi-run reads: prompt text, token ids.
#ifndef ATSI_RUNTIME_INPUT_H
#define ATSI_RUNTIME_INPUT_H

#include "runtime/options.h"
#include "runtime/tokenizer/tokenizer.h"

// The prompt of the options, byte for byte: -p, the file of -f, else standard input to its end. Free with atsi_bytes_free.
enum atsi_status atsi_read_prompt(const struct atsi_run_options *o, struct atsi_bytes *out, struct atsi_error *err);

// Whole numbers 0..2^31-1 separated by white space. `name` is for messages. *ids is freed with free(); *n may be 0.
enum atsi_status atsi_parse_ids(const char *text, size_t size, const char *name, int32_t **ids, uint32_t *n,
                                struct atsi_error *err);

#endif
