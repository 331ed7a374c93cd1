#include "kernels/cpu/features.h"

#include <string.h>

static const char *const NAMES[ATSI_ISA_LIMIT] = {"reference", "avx2", "avxvnni", "avx512"};

const char *atsi_isa_name(enum atsi_isa isa) { return (unsigned)isa < ATSI_ISA_LIMIT ? NAMES[isa] : "unknown"; }

#if defined(__x86_64__)
#include <cpuid.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

// The register files that the system saves on a task switch (XCR0): 1 SSE, 2 AVX, 5..7 AVX-512, 17 and 18 AMX.
static uint32_t saved_state(void) {
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static bool all_set(uint32_t word, uint32_t bits) { return (word & bits) == bits; }

struct cpu_words {
    uint32_t leaf1_ecx, leaf7_ebx, leaf7_ecx, leaf7_edx, leaf7_1_eax;
    uint32_t state;
};

static struct cpu_words read_cpu(void) {
    struct cpu_words w = {0};
    uint32_t a, b, c, d, n_subleaves;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return w;
    w.leaf1_ecx = c;
    if (!__get_cpuid_count(7, 0, &n_subleaves, &b, &c, &d)) return w;
    w.leaf7_ebx = b;
    w.leaf7_ecx = c;
    w.leaf7_edx = d;
    if (n_subleaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) w.leaf7_1_eax = a;
    if (w.leaf1_ecx & bit_OSXSAVE) w.state = saved_state();
    return w;
}

bool atsi_isa_supported(enum atsi_isa isa) {
    const uint32_t AVX_STATE = 0x06, AVX512_STATE = 0xe6, AVX_VNNI_BIT = 1u << 4;
    struct cpu_words w = read_cpu();
    bool avx2 = all_set(w.leaf1_ecx, bit_FMA | bit_F16C) && all_set(w.leaf7_ebx, bit_AVX2 | bit_BMI | bit_BMI2) &&
                all_set(w.state, AVX_STATE);
    switch (isa) {
    case ATSI_ISA_REFERENCE: return true;
    case ATSI_ISA_AVX2: return avx2;
    case ATSI_ISA_AVXVNNI: return avx2 && all_set(w.leaf7_1_eax, AVX_VNNI_BIT);
    case ATSI_ISA_AVX512:
        return avx2 && all_set(w.leaf7_ebx, bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL) &&
               all_set(w.leaf7_ecx, bit_AVX512VNNI) && all_set(w.state, AVX512_STATE);
    default: return false;
    }
}

bool atsi_cpu_has_vbmi(void) { return all_set(read_cpu().leaf7_ecx, bit_AVX512VBMI); }

bool atsi_cpu_wants_prefetch(void) {
    uint32_t a, vendor[3]; // in ebx, edx, ecx
    return __get_cpuid(0, &a, &vendor[0], &vendor[2], &vendor[1]) && memcmp(vendor, "GenuineIntel", sizeof vendor) == 0;
}

bool atsi_cpu_has_amx(void) {
    const uint32_t AMX_STATE = 3u << 17, AMX_BITS = 1u << 22 | 3u << 24; // of leaf 7, edx: bf16; tiles, int8
    enum {
        REQUEST_PERMISSION = 0x1023, // ARCH_REQ_XCOMP_PERM, newer than some headers
        TILE_DATA = 18
    };
    struct cpu_words w = read_cpu();
    return all_set(w.leaf7_edx, AMX_BITS) && all_set(w.state, AMX_STATE) &&
           syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}
#else
bool atsi_isa_supported(enum atsi_isa isa) { return isa == ATSI_ISA_REFERENCE; }
bool atsi_cpu_has_vbmi(void) { return false; }
bool atsi_cpu_wants_prefetch(void) { return false; }
bool atsi_cpu_has_amx(void) { return false; }
#endif

enum atsi_isa atsi_isa_best(void) {
    enum atsi_isa best = ATSI_ISA_LIMIT - 1;
    while (!atsi_isa_supported(best)) best--;
    return best;
}

enum atsi_status atsi_isa_select(const char *name, enum atsi_isa *out, struct atsi_error *err) {
    if (name == NULL || strcmp(name, "auto") == 0) {
        *out = atsi_isa_best();
        return ATSI_OK;
    }
    for (int isa = 0; isa < ATSI_ISA_LIMIT; isa++) {
        if (strcmp(name, NAMES[isa]) != 0) continue;
        if (!atsi_isa_supported((enum atsi_isa)isa))
            return atsi_fail(err, ATSI_BAD_INPUT, "this CPU has no %s; the best it has is %s", name,
                             NAMES[atsi_isa_best()]);
        *out = (enum atsi_isa)isa;
        return ATSI_OK;
    }
    return atsi_fail(err, ATSI_BAD_INPUT,
                     "unknown instruction set \"%s\": expected auto, reference, avx2, avxvnni or avx512", name);
}
