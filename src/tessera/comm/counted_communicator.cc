#include "tessera/comm/counted_communicator.h"

#include "tessera/mesh/traffic.h"

namespace tessera {
namespace {

std::int64_t element_bytes(const ConstElements& elements) {
  return static_cast<std::int64_t>(size_bytes(elements.dtype));
}

}  // namespace

void CountedCommunicator::all_gather(std::span<const std::byte> part,
                                     std::span<std::byte> all,
                                     std::size_t stride) {
  count(static_cast<std::int64_t>(stride));
  counted_.all_gather(part, all, stride);
}

void CountedCommunicator::reduce_scatter(Fold fold,
                                         const ConstElements& all,
                                         const Elements& part,
                                         std::int64_t stride) {
  count(stride * element_bytes(all));
  counted_.reduce_scatter(fold, all, part, stride);
}

void CountedCommunicator::all_reduce(Fold fold, const ConstElements& in, const Elements& out) {
  count(2 * all_reduce_stride(in.count, size()) * element_bytes(in));
  counted_.all_reduce(fold, in, out);
}

void CountedCommunicator::all_to_all(std::span<const std::byte> send,
                                     std::span<std::byte> receive) {
  count(static_cast<std::int64_t>(send.size()) / size());
  counted_.all_to_all(send, receive);
}

void CountedCommunicator::ring_shift(std::span<const std::byte> send,
                                     std::span<std::byte> receive) {
  add_sent_bytes(size() > 1 ? static_cast<std::int64_t>(send.size()) : 0);
  counted_.ring_shift(send, receive);
}

}  // namespace tessera
