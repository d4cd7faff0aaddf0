#include "tessera/comm/mpi/mpi_group.h"

#include <algorithm>
#include <string>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/mpi/mpi_check.h"

namespace tessera {

MpiGroup::MpiGroup(std::shared_ptr<MpiRun> run,
                   std::span<const std::int64_t> members,
                   std::int64_t generation)
    : run_(std::move(run)),
      members_(members.begin(), members.end()),
      own_(static_cast<std::size_t>(place_in_group(members, run_->rank(), run_->size()))),
      ticket_(run_->announce(members, generation)) {}

MpiGroup::~MpiGroup() {
  run_->retire(ticket_);
}

void MpiGroup::begin(const GroupCall& call) {
  call_ = call;
  run_->take_control_messages();
  leave_if_aborted();
  if (tags_.empty()) {
    meet();
  }
}

void MpiGroup::meet() {
  std::vector<int> tags(members_.size(), -1);
  tags[own_] = ticket_.tag;
  Backoff backoff = run_->backoff();
  const auto unknown = [&](std::size_t peer) { return tags[peer] < 0; };
  while (std::ranges::find(tags, -1) != tags.end()) {
    run_->exchange_progress();
    for_each_peer([&](std::size_t peer) {
      tags[peer] = unknown(peer) ? run_->tag_of(ticket_, members_[peer]).value_or(-1) : tags[peer];
    });
    leave_if_aborted(unknown);
    if (!backoff.pause()) {
      fail_late(unknown);
    }
  }
  tags_ = std::move(tags);
}

void MpiGroup::compare(std::size_t peer, const GroupCall& other) {
  if (other != call_) {
    const std::string message = mismatch_message(members_[own_], call_, members_[peer], other);
    run_->abort(message);
    fail(ErrorCode::kInternal, "{}", message);
  }
}

void MpiGroup::post_receive(Requests& requests, std::size_t peer, std::span<std::byte> to) const {
  if (!to.empty()) {
    check_mpi(MPI_Irecv(to.data(),
                        static_cast<int>(to.size()),
                        MPI_BYTE,
                        static_cast<int>(members_[peer]),
                        ticket_.tag,
                        run_->data(),
                        requests.add(peer, Requests::Kind::kReceive)),
              "MPI_Irecv");
  }
}

void MpiGroup::post_send(Requests& requests,
                         std::size_t peer,
                         std::span<const std::byte> from) const {
  if (!from.empty()) {
    check_mpi(MPI_Isend(from.data(),
                        static_cast<int>(from.size()),
                        MPI_BYTE,
                        static_cast<int>(members_[peer]),
                        tags_[peer],
                        run_->data(),
                        requests.add(peer, Requests::Kind::kSend)),
              "MPI_Isend");
  }
}

void MpiGroup::wait(Requests& requests) {
  constexpr int kLooksAtControl = 32;
  Backoff backoff = run_->backoff();
  int turn = 0;
  bool some = false;
  const auto is_late = [&](std::size_t peer) { return requests.waits_for(peer); };
  while (!requests.test(some)) {
    if (some) {
      backoff.renew();
    }
    if (++turn % kLooksAtControl == 0) {
      run_->exchange_progress();
      leave_if_aborted(is_late);
    }
    if (!backoff.pause()) {
      fail_late(is_late);
    }
  }
}

void MpiGroup::leave_if_aborted() const {
  if (run_->aborted()) {
    fail(ErrorCode::kPeerFailure, "{}", run_->abort_reason());
  }
}

void MpiGroup::leave_if_aborted(const IsMissing& is_missing) const {
  with_context(
      [&] {
        const auto [arrived, missing] = attendance(is_missing);
        return attendance_message(to_string(call_), arrived, missing);
      },
      [&] { leave_if_aborted(); });
}

MpiGroup::Attendance MpiGroup::attendance(const IsMissing& is_missing) const {
  Attendance found;
  for (std::size_t peer = 0; peer < members_.size(); ++peer) {
    const bool late = peer != own_ && is_missing(peer);
    (late ? found.missing : found.arrived).push_back(members_[peer]);
  }
  return found;
}

void MpiGroup::fail_late(const IsMissing& is_missing) {
  const auto [arrived, missing] = attendance(is_missing);
  const std::string message = late_message(to_string(call_), run_->options(), arrived, missing);
  run_->abort(message);
  fail(ErrorCode::kTimeout, "{}", message);
}

}  // namespace tessera
