#include "tessera/passes/memory/storage_builder.h"

#include <cstddef>
#include <utility>

namespace tessera {

StorageBuilder::StorageBuilder(const Graph& graph) : graph_(graph) {
  storage_.tensors.resize(graph.values.size());
}

const StorageBuffer& StorageBuilder::buffer_of(ValueId value) const {
  return storage_.buffers[tensor(value).buffer.at()];
}

const std::vector<ValueId>& StorageBuilder::values_beside(ValueId value) const {
  return values_in_[tensor(value).buffer.at()];
}

void StorageBuilder::place_in(StorageBuffer buffer, ValueId value) {
  const TensorType& type = graph_[value].type;
  storage_.buffers.push_back(std::move(buffer));
  values_in_.emplace_back();
  place(value,
        {.buffer = BufferId::of(storage_.buffers.size() - 1),
         .offset = 0,
         .type = type,
         .strides = dense_strides(type)});
}

void StorageBuilder::place_inside(ValueId value,
                                  ValueId whole,
                                  std::int64_t dim,
                                  std::int64_t begin) {
  const TensorRef& outer = tensor(whole);
  const auto element = static_cast<std::int64_t>(size_bytes(outer.type.dtype));
  place(value,
        {.buffer = outer.buffer,
         .offset = outer.offset + begin * outer.strides[static_cast<std::size_t>(dim)] * element,
         .type = graph_[value].type,
         .strides = outer.strides});
}

void StorageBuilder::place_over(ValueId value, ValueId other) {
  TensorRef same = tensor(other);
  same.type = graph_[value].type;
  place(value, std::move(same));
}

Storage StorageBuilder::take() {
  return std::move(storage_);
}

void StorageBuilder::place(ValueId value, TensorRef place) {
  values_in_[place.buffer.at()].push_back(value);
  storage_.tensors[value.at()] = std::move(place);
}

}  // namespace tessera
