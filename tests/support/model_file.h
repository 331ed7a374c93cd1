// model_file.h: the program of program_builder.h as a plan file with weights, opened the way atsi-run opens it.
#ifndef ATSI_TESTS_SUPPORT_MODEL_FILE_H
#define ATSI_TESTS_SUPPORT_MODEL_FILE_H

#include "runtime/model.h"

enum {
    MODEL_FILE_TENSORS_MAX = 32
};

struct model_file {
    struct atsi_model model;
    uint8_t *bytes[MODEL_FILE_TENSORS_MAX]; // what each tensor holds
};

// All units on the GPU and their tensors in the resident section, or all on the CPU; with decode times that make "exps" the least
// valuable unit a byte, then "q", then "o". `compress`: the experts are stored compressed. Fails the test when anything goes wrong.
void model_file_open(struct model_file *f, enum atsi_backend home, bool compress);
// All units on the GPU but "exps", of which experts 2 and 0 are resident one by one. `compress`: as above.
void model_file_open_mixed(struct model_file *f, bool compress);
void model_file_close(struct model_file *f);
// The program's unit and tensor of that name.
uint32_t model_file_unit(const struct model_file *f, const char *name);
uint32_t model_file_tensor(const struct model_file *f, const char *name);

#endif
