#pragma once

#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace tessera {

// Adds a thread that runs `body`; false where the system gives no more of them (a limit of
// processes, no memory): the caller then does with those that it has, or by itself.
template <class Body>
bool start_thread(std::vector<std::jthread>& threads, Body&& body) {
  try {
    threads.emplace_back(std::forward<Body>(body));
    return true;
  } catch (const std::system_error&) {
    return false;
  }
}

}  // namespace tessera
