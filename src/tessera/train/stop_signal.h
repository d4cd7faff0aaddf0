#pragma once

namespace tessera {

// While one lives, the first SIGINT or SIGTERM is only noted; a second one ends the process at
// once.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  bool requested() const;
};

}  // namespace tessera
