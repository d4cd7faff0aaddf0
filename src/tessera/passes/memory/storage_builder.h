#pragma once

#include <cstdint>
#include <vector>

#include "tessera/ir/graph.h"
#include "tessera/passes/memory/storage.h"
#include "tessera/program/program.h"

namespace tessera {

// Storage in the making: the buffers so far, and the values that lie in them.
class StorageBuilder {
 public:
  // Keeps `graph`.
  explicit StorageBuilder(const Graph& graph);

  bool is_placed(ValueId value) const { return storage_.tensors[value.at()].buffer.valid(); }

  // Where a placed value lies.
  const TensorRef& tensor(ValueId value) const { return storage_.tensors[value.at()]; }

  // Which buffer a placed value lies in.
  const StorageBuffer& buffer_of(ValueId value) const;

  // The values placed in that buffer, this one among them.
  const std::vector<ValueId>& values_beside(ValueId value) const;

  // Places the value at the start of a new buffer.
  void place_in(StorageBuffer buffer, ValueId value);

  // Places the value as the stretch of `whole` that starts at `begin` of `dim`.
  void place_inside(ValueId value, ValueId whole, std::int64_t dim, std::int64_t begin);

  // Places the value where `other` lies.
  void place_over(ValueId value, ValueId other);

  // Ends the making.
  Storage take();

 private:
  void place(ValueId value, TensorRef place);

  const Graph& graph_;
  Storage storage_;
  std::vector<std::vector<ValueId>> values_in_;  // by buffer
};

}  // namespace tessera
