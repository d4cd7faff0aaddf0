#pragma once

#include "tessera/ops/batched_product/batched_product.h"

namespace tessera {

struct BatchedProductOperands {
  const View& a;
  const View& b;
  const View& y;
};

BatchedProductOperands by_name(const BatchedProductAttrs& attrs, const Views& views);

}  // namespace tessera
