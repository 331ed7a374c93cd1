// mma.cuh: matrix instructions and copies to shared memory, with their forms for compute capability 7.5.
//
// Fragments of a warp, lane = 4 g + t (PTX ISA, "Matrix Fragments"): A row g (registers 0, 2) and row g + 8 (1, 3); B column g;
// C rows g (0, 1) and g + 8 (2, 3), columns 2t and 2t + 1.
#ifndef ATSI_KERNELS_CUDA_MMA_CUH
#define ATSI_KERNELS_CUDA_MMA_CUH

#include <stdint.h>

// Integer sums start at the bits of 1.5 * 2^23, so that read as a float a sum n (|n| < 2^22) is that number plus n: one
// float subtraction instead of a conversion, which runs at a fraction of its rate.
constexpr int SUM_ZERO = 0x4b400000;
__device__ inline float sum_value(int c) { return __int_as_float(c) - 12582912.0f; }

#define ATSI_MMA_K16(A_TYPE) \
    "mma.sync.aligned.m16n8k16.row.col.s32." A_TYPE ".s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
#define ATSI_MMA_K32(A_TYPE) \
    "mma.sync.aligned.m16n8k32.row.col.s32." A_TYPE ".s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#define ATSI_MMA_8_ROWS(A_TYPE) "mma.sync.aligned.m8n8k16.row.col.s32." A_TYPE ".s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"

// c += A * B over 16 columns of bytes, B's int8, A's int8 or UNSIGNED. a0, a1: bytes 4t..4t+3 of A's two rows, b: the same bytes of
// B's column.
template <bool UNSIGNED> __device__ inline void mma_k16(int c[4], uint32_t a0, uint32_t a1, uint32_t b) {
#if __CUDA_ARCH__ >= 800
    if (UNSIGNED)
        asm(ATSI_MMA_K16("u8") : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a0), "r"(a1), "r"(b));
    else
        asm(ATSI_MMA_K16("s8") : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a0), "r"(a1), "r"(b));
#else
    if (UNSIGNED) {
        asm(ATSI_MMA_8_ROWS("u8") : "+r"(c[0]), "+r"(c[1]) : "r"(a0), "r"(b));
        asm(ATSI_MMA_8_ROWS("u8") : "+r"(c[2]), "+r"(c[3]) : "r"(a1), "r"(b));
    } else {
        asm(ATSI_MMA_8_ROWS("s8") : "+r"(c[0]), "+r"(c[1]) : "r"(a0), "r"(b));
        asm(ATSI_MMA_8_ROWS("s8") : "+r"(c[2]), "+r"(c[3]) : "r"(a1), "r"(b));
    }
#endif
}

// The same over 32 columns; a[2], a[3] and b1: bytes 16 + 4t.. .
template <bool UNSIGNED> __device__ inline void mma_k32(int c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    if (UNSIGNED)
        asm(ATSI_MMA_K32("u8")
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm(ATSI_MMA_K32("s8")
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    mma_k16<UNSIGNED>(c, a[0], a[1], b0);
    mma_k16<UNSIGNED>(c, a[2], a[3], b1);
#endif
}

// Half-precision operands over 16 columns, float sums. a[0], a[1]: columns 2t, 2t + 1 of A's two rows; a[2], a[3] and b1: columns
// 8 + 2t.. .
__device__ inline void mma_f16_k16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

// The same with bfloat16, from compute capability 8.0 on.
#if __CUDA_ARCH__ >= 800
__device__ inline void mma_bf16_k16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// v as two TF32 numbers whose sum it is, but for a part in 2^22. Rounded by hand: cvt.rna is several instructions more. The low bits
// that are left in `low` are ignored by the matrix instruction.
struct tf32_pair {
    uint32_t high, low;
    __device__ void split(float v) {
        high = (__float_as_uint(v) + 0x1000u) & 0xffffe000u;
        low = __float_as_uint(v - __uint_as_float(high)) + 0x1000u;
    }
};
__device__ inline void mma_tf32(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                uint32_t b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// c += A * B over 8 columns; registers 0, 1 of A and 0 of B: column t, the others: column t + 4. EXACT_A: A has no low parts.
template <bool EXACT_A> __device__ inline void mma_tf32_pairs(float c[4], const tf32_pair a[4], const tf32_pair b[2]) {
    mma_tf32(c, a[0].high, a[1].high, a[2].high, a[3].high, b[0].low, b[1].low);
    if (!EXACT_A) mma_tf32(c, a[0].low, a[1].low, a[2].low, a[3].low, b[0].high, b[1].high);
    mma_tf32(c, a[0].high, a[1].high, a[2].high, a[3].high, b[0].high, b[1].high);
}
#endif

// An 8 x 8 matrix of 16-bit elements held as an A or C row fragment (lane 4g + t: row g, columns 2t, 2t + 1), transposed.
__device__ inline uint32_t transpose_8x8(uint32_t v) {
    uint32_t out;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(v));
    return out;
}

// Four 8-row matrices of 16 bytes a row from shared memory; lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void load_matrices(uint32_t v[4], const void *shared_row) {
    uint32_t address = (uint32_t)__cvta_generic_to_shared(shared_row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(address));
}
__device__ inline void load_matrices_transposed(uint32_t v[4], const void *shared_row) {
    uint32_t address = (uint32_t)__cvta_generic_to_shared(shared_row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(address));
}

// Starts a copy of 16 bytes to shared memory; copy_wait() and a barrier make it visible. Below 8.0 it happens at once.
__device__ inline void copy16_async(void *shared, const void *global) {
#if __CUDA_ARCH__ >= 800
    uint32_t address = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global) : "memory");
#else
    *(uint4 *)shared = *(const uint4 *)global;
#endif
}
// The same with 8 bytes.
__device__ inline void copy8_async(void *shared, const void *global) {
#if __CUDA_ARCH__ >= 800
    uint32_t address = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(address), "l"(global) : "memory");
#else
    *(uint2 *)shared = *(const uint2 *)global;
#endif
}
__device__ inline void copy_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits until at most N groups are still under way.
template <int N> __device__ inline void copy_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

// The same with a number of groups (at most 3) that the compiler does not know.
__device__ inline void copy_wait_but(int n) {
    if (n >= 3)
        copy_wait<3>();
    else if (n == 2)
        copy_wait<2>();
    else if (n == 1)
        copy_wait<1>();
    else
        copy_wait<0>();
}

#endif
