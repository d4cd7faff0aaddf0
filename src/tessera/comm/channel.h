#pragma once

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace tessera {

// Which of a run's channels: the two ranks, and a number that tells those of the same two ranks
// apart.
struct ChannelKey {
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int64_t number = 0;

  friend auto operator<=>(const ChannelKey&, const ChannelKey&) = default;
};

// A rank's end of a one-way connection between two ranks. Transfers go out at the sender's end and
// come in at the receiver's, in the same order and of equal sizes. A transfer needs both ends: no
// memory of the channel's own holds it between them, so that the sender's is done only when the
// receiver takes it. One transfer at a time is under way at an end, and one thread at a time uses
// it.
class Channel {
 public:
  using Clock = std::chrono::steady_clock;

  Channel() = default;
  // Ends a transfer that is under way: nobody reads or writes its memory any more.
  virtual ~Channel() = default;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Starts a transfer of `memory`, which belongs to the channel until advance() returns true or
  // throws. The sender's is not written. Waits for nobody.
  virtual void begin(std::span<std::byte> memory) = 0;

  // Goes on with it as far as that needs no wait. Whether it is done, as it is where none is under
  // way. Errors: kInternal where the ends' sizes differ, naming both; kPeerFailure where a rank
  // gave up; kTimeout where the other end does not come and no rank of the run has finished an
  // instruction for as long as the deadline.
  virtual bool advance() = 0;

  // Ends a transfer that is under way: nobody reads or writes its memory any more. The channel
  // moves nothing after it.
  virtual void withdraw() = 0;

  // When a transfer that nobody else holds up will be done, where that is known: nothing rings
  // then.
  virtual std::optional<Clock::time_point> due() const { return std::nullopt; }
};

}  // namespace tessera
