// features.h: which instruction sets this CPU has, and the names by which a user forces one.
#ifndef ATSI_KERNELS_CPU_FEATURES_H
#define ATSI_KERNELS_CPU_FEATURES_H

#include <stdbool.h>

#include "formats/base/error.h"

enum atsi_isa {
    ATSI_ISA_REFERENCE = 0, // portable C
    ATSI_ISA_AVX2 = 1,      // AVX2, FMA, F16C, BMI2
    ATSI_ISA_AVXVNNI = 2,   // and AVX-VNNI: 256-bit int8 dot products (client cores without AVX-512)
    ATSI_ISA_AVX512 = 3,    // AVX-512 F, BW, DQ, VL, VNNI
    ATSI_ISA_LIMIT
};

// "reference", "avx2", "avxvnni", "avx512".
const char *atsi_isa_name(enum atsi_isa isa);
// Whether this build has the kernels and the CPU and the system (register state) allow them.
bool atsi_isa_supported(enum atsi_isa isa);
// The last supported one of the list above.
enum atsi_isa atsi_isa_best(void);
// Whether a CPU that has ATSI_ISA_AVX512 also has VBMI, which looks bytes up across a register.
bool atsi_cpu_has_vbmi(void);
// Whether it has AMX for int8 and bfloat16, and the system lets this process use it: asks for that (Linux 5.16), for all threads.
bool atsi_cpu_has_amx(void);
// Whether a thread that reads much once gets it faster when it asks for it ahead by instructions: Intel's processors, not AMD's (measured;
// docs/kernels-cpu.md).
bool atsi_cpu_wants_prefetch(void);
// By name; NULL and "auto" give the best. ATSI_BAD_INPUT when the name is unknown or the CPU lacks the instructions.
enum atsi_status atsi_isa_select(const char *name, enum atsi_isa *out, struct atsi_error *err);

#endif
