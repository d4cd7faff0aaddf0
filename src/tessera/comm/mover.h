#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/base/thread_team.h"
#include "tessera/comm/communicator.h"
#include "tessera/ir/wire_format.h"

namespace tessera {

// What handles the elements of collectives where they lie: the host's threads in its memory, or
// the kernels of a device in the device's. Results have the same bits either way, but for those by
// which NaNs differ. An operation may only begin; the next ones come after it, and finish() ends
// them.
class Mover {
 public:
  Mover() = default;
  virtual ~Mover() = default;
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  // Whether it works in the host's memory.
  virtual bool is_host() const = 0;

  // to = from, of as many bytes. They may be the same.
  virtual void copy(const std::byte* from, std::span<std::byte> to) const = 0;

  // Copies `count` rows of `bytes` each, which begin so far from each other.
  virtual void copy_rows(const std::byte* from,
                         std::int64_t from_pitch,
                         std::byte* to,
                         std::int64_t to_pitch,
                         std::int64_t bytes,
                         std::int64_t count) const = 0;

  virtual void zero(std::span<std::byte> to) const = 0;

  // As fold_in_order() (comm/fold.h).
  virtual void fold(Fold fold,
                    std::span<const std::byte* const> sources,
                    const Elements& out,
                    std::span<std::byte* const> copies) const = 0;

  // As those of comm/quantize.h.
  virtual void encode(const ConstElements& from,
                      std::int64_t padded,
                      const Encoding& encoding,
                      std::byte* to) const = 0;
  virtual void decode_sum(std::span<const std::byte* const> parts,
                          const Encoding& encoding,
                          const Elements& to) const = 0;

  // Returns when all that it began, and what was begun before on its stream, is done. Errors: what
  // that failed with.
  virtual void finish() const = 0;
};

// Works in the host's memory, at once.
class HostMover final : public Mover {
 public:
  // Codes are made by the team, which is borrowed.
  explicit HostMover(ThreadTeam& team) : team_(team) {}

  bool is_host() const override { return true; }

  void copy(const std::byte* from, std::span<std::byte> to) const override;
  void copy_rows(const std::byte* from,
                 std::int64_t from_pitch,
                 std::byte* to,
                 std::int64_t to_pitch,
                 std::int64_t bytes,
                 std::int64_t count) const override;
  void zero(std::span<std::byte> to) const override;
  void fold(Fold fold,
            std::span<const std::byte* const> sources,
            const Elements& out,
            std::span<std::byte* const> copies) const override;
  void encode(const ConstElements& from,
              std::int64_t padded,
              const Encoding& encoding,
              std::byte* to) const override;
  void decode_sum(std::span<const std::byte* const> parts,
                  const Encoding& encoding,
                  const Elements& to) const override;

  void finish() const override {}

 private:
  ThreadTeam& team_;
};

// One of one thread, for all.
const Mover& host_mover();

}  // namespace tessera
