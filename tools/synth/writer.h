// writer.h: writes a synthetic model to a file with several threads.
#ifndef ATSI_TOOLS_SYNTH_WRITER_H
#define ATSI_TOOLS_SYNTH_WRITER_H

#include "formats/base/new_file.h"
#include "tools/synth/values.h"

// Writes all tensors from `data_offset` on. The bytes do not depend on n_threads (at least 1).
enum atsi_status synth_write_tensors(struct atsi_new_file *file, uint64_t data_offset,
                                     const struct synth_values *values, unsigned n_threads, struct atsi_error *err);

// Writes the one tensor whose values decide how a model is planned, the divisors of the rope frequencies, where there is one.
enum atsi_status synth_write_divisors(struct atsi_new_file *file, uint64_t data_offset,
                                      const struct synth_values *values, struct atsi_error *err);

#endif
