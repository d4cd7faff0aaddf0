#pragma once

#include <cmath>

#include "tessera/base/host_device.h"
#include "tessera/ops/adamw/adamw.h"

namespace tessera {

// The scalars of one AdamW update, computed once in f64 and rounded to f32. Without initializers,
// so that a block of GPU threads can share one.
struct AdamwStep {
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float eps;
  float decay;            // 1 - lr weight_decay
  float step;             // lr / (1 - beta1^t)
  float root_correction;  // 1 / sqrt(1 - beta2^t)
  float gradient_scale;
};

// Which of a kernel's variants an update takes.
struct AdamwForm {
  bool bf16_gradient = false;  // else f32
  bool bf16_moments = false;
  bool master = false;
};

// t: the number of this update, from 1.
TESSERA_HOST_DEVICE inline AdamwStep adamw_step(const AdamwAttrs& attrs,
                                                double lr,
                                                double t,
                                                float gradient_scale) {
  return {.beta1 = static_cast<float>(attrs.beta1),
          .one_minus_beta1 = static_cast<float>(1.0 - attrs.beta1),
          .beta2 = static_cast<float>(attrs.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - attrs.beta2),
          .eps = static_cast<float>(attrs.eps),
          .decay = static_cast<float>(1.0 - lr * attrs.weight_decay),
          .step = static_cast<float>(lr / (1.0 - std::pow(attrs.beta1, t))),
          .root_correction = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(attrs.beta2, t))),
          .gradient_scale = gradient_scale};
}

}  // namespace tessera
