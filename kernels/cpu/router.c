#include "kernels/cpu/router.h"

// Numbers of the n_used largest of scores + bias. `keys` receives what they were selected by.
static void select_best(const float *scores, const float *bias, uint32_t n_experts, uint32_t n_used, int32_t *ids,
                        float *keys) {
    uint32_t n = 0;
    for (uint32_t e = 0; e < n_experts; e++) {
        float key = scores[e] + (bias != NULL ? bias[e] : 0.0f);
        if (n == n_used && !(key > keys[n - 1])) continue;
        uint32_t at = n < n_used ? n++ : n - 1;
        for (; at > 0 && key > keys[at - 1]; at--) {
            keys[at] = keys[at - 1];
            ids[at] = ids[at - 1];
        }
        keys[at] = key;
        ids[at] = (int32_t)e;
    }
}

void atsi_route(const struct atsi_vec_kernels *vec, const struct atsi_router_params *p, const float *logits,
                const float *bias, float *scores, int32_t *ids, float *weights) {
    const float *by = logits;
    if (p->score == ATSI_ROUTER_SIGMOID) {
        vec->sigmoid(logits, p->n_experts, scores);
        by = scores;
    } else if (p->score == ATSI_ROUTER_SOFTMAX) {
        float sum = vec->exp_shifted(logits, p->n_experts, scores);
        vec->scale(scores, 1.0f / sum, p->n_experts, scores);
        by = scores;
    }
    select_best(by, bias, p->n_experts, p->n_used, ids, weights); // `weights` holds the keys for a moment
    for (uint32_t s = 0; s < p->n_used; s++) weights[s] = by[ids[s]];
    if (p->score == ATSI_ROUTER_SOFTMAX_SELECTED) {
        float sum = vec->exp_shifted(weights, p->n_used, weights);
        vec->scale(weights, 1.0f / sum, p->n_used, weights);
    }
    float factor = p->scale;
    if (p->normalise) {
        float sum = 0.0f;
        for (uint32_t s = 0; s < p->n_used; s++) sum += weights[s];
        factor /= sum;
    }
    vec->scale(weights, factor, p->n_used, weights);
}

uint32_t atsi_route_resident_first(const int32_t *resident_slots, uint32_t n_used, int32_t *ids, float *weights) {
    uint32_t n_resident = 0;
    for (uint32_t s = 0; s < n_used; s++) {
        int32_t id = ids[s];
        float weight = weights[s];
        if (resident_slots[id] < 0) continue;
        for (uint32_t at = s; at > n_resident; at--) {
            ids[at] = ids[at - 1];
            weights[at] = weights[at - 1];
        }
        ids[n_resident] = id;
        weights[n_resident++] = weight;
    }
    return n_resident;
}
