#include "kernels/cpu/act_quant.h"

#include <math.h>

// Below this the reciprocal scale would overflow; such inputs are zero for every purpose.
static const float SMALLEST = 0x1p-100f;

static int8_t nearest_int8(float x) {
    float limited = x > 127.0f ? 127.0f : x < -127.0f ? -127.0f : x;
    return limited == limited ? (int8_t)lrintf(limited) : 0; // a NaN has no integer; the scale carries it on
}

void atsi_act_quantise_ref(const float *in, uint32_t n_cols, struct atsi_act_block *out) {
    for (uint32_t c = 0; c < n_cols; c += 32, in += 32, out++) {
        float largest = 0;
        bool any_nan = false;
        for (int i = 0; i < 32; i++) {
            largest = fabsf(in[i]) > largest ? fabsf(in[i]) : largest;
            any_nan |= isnan(in[i]) != 0;
        }
        float inverse = largest > SMALLEST ? 127.0f / largest : 0;
        out->d = any_nan ? NAN : largest > SMALLEST ? largest / 127.0f : 0;
        for (int half = 0; half < 2; half++) {
            int sum = 0;
            for (int i = 16 * half; i < 16 * half + 16; i++) {
                out->q[i] = nearest_int8(in[i] * inverse);
                sum += out->q[i];
            }
            out->sum[half] = (int16_t)sum;
        }
        out->d_sum = out->d * (float)(out->sum[0] + out->sum[1]);
    }
}
