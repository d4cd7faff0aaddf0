#pragma once

#include "tessera/ops/adamw/adamw.h"

namespace tessera::cpu {

// The scalars of one AdamW update, computed once in f64 and rounded to f32.
struct AdamwStep {
  float beta1 = 0.0F;
  float one_minus_beta1 = 0.0F;
  float beta2 = 0.0F;
  float one_minus_beta2 = 0.0F;
  float eps = 0.0F;
  float decay = 1.0F;            // 1 - lr weight_decay
  float step = 0.0F;             // lr / (1 - beta1^t)
  float root_correction = 1.0F;  // 1 / sqrt(1 - beta2^t)
  float gradient_scale = 1.0F;
};

// t: the number of this update, from 1.
AdamwStep adamw_step(const AdamwAttrs& attrs, double lr, double t, float gradient_scale);

}  // namespace tessera::cpu
