// output.h: generated tokens on their way to standard output: text as it grows (whole characters, stop texts held back), ids, or one
// JSON object at the end.
#ifndef ATSI_RUNTIME_OUTPUT_H
#define ATSI_RUNTIME_OUTPUT_H

#include <stdio.h>

#include "formats/base/str.h"
#include "runtime/generate.h"
#include "runtime/options.h"

struct atsi_output_impl;
struct atsi_output {
    struct atsi_output_impl *impl;
};

// Options and tokenizer are borrowed. ATSI_FAILED without memory; *out is to be freed either way.
enum atsi_status atsi_output_open(struct atsi_output *out, const struct atsi_run_options *o,
                                  const struct atsi_tokenizer *tokenizer, struct atsi_error *err);
// For struct atsi_generate_params: context is the struct atsi_output. False when a stop text is complete. A closed pipe ends the
// generation quietly.
bool atsi_output_token(void *context, int32_t id, struct atsi_error *err, enum atsi_status *status);
// The same for a token that is part of the answer but not of its text: only ids are given out.
bool atsi_output_silent_token(void *context, int32_t id, struct atsi_error *err, enum atsi_status *status);
// The text that was given out so far; lives until the next call.
struct atsi_str atsi_output_shown(const struct atsi_output *out);
// Writes what was held back and, with --json, the object.
enum atsi_status atsi_output_finish(struct atsi_output *out, const struct atsi_generate_result *result,
                                    struct atsi_error *err);
void atsi_output_free(struct atsi_output *out);

#endif
