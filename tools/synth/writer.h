// writer.h: writes a synthetic model to a file with several threads.
#ifndef ATSI_TOOLS_SYNTH_WRITER_H
#define ATSI_TOOLS_SYNTH_WRITER_H

#include "formats/gguf.h"
#include "tools/synth/tensors.h"

// Writes the GGUF file. `vocabulary` as in synth_header_make. The bytes do not depend on n_threads; 0 of them leave the weights out: a
// sparse file of the right size, with the one tensor whose values decide how a model is planned (the divisors of its rope frequencies).
// *size_bytes is that of the file.
enum atsi_status synth_write_file(const char *path, const struct synth_model *model, const struct atsi_gguf *vocabulary,
                                  uint64_t seed, unsigned n_threads, uint64_t *size_bytes, struct atsi_error *err);

#endif
