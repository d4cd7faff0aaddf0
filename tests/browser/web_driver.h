#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/cli/process.h"

namespace tessera {

// A headless Chromium, driven through chromedriver by the WebDriver protocol (W3C) over loopback.
class Browser {
 public:
  // What is missing on this machine, or nothing.
  static std::optional<std::string> missing();

  // Starts both, with their files in `directory`. Errors: kDeviceError.
  explicit Browser(const std::filesystem::path& directory);
  ~Browser();
  Browser(const Browser&) = delete;
  Browser& operator=(const Browser&) = delete;

  // The size of the page's window in CSS pixels, and the scheme that the reader prefers.
  void set_screen(int width, int height, bool dark);

  void open(const std::filesystem::path& page);

  // What `body`, the body of a function, returns there.
  nlohmann::json script(const std::string& body);

  // Types keys into what has the focus; "\uE012" is an arrow (WebDriver, section 17.4.2).
  void type(const std::vector<std::string>& keys);

  // Moves the pointer to a place of the window.
  void point(double x, double y);

  // What the console has said since it was last asked: errors and warnings.
  std::vector<std::string> console();

  // The whole page, below the window too, as a PNG file.
  void screenshot(const std::filesystem::path& path);

 private:
  nlohmann::json send(std::string_view method,
                      const std::string& path,
                      const nlohmann::json& body = nlohmann::json::object());
  nlohmann::json devtools(const std::string& command, const nlohmann::json& parameters);
  void start_driver(const std::filesystem::path& directory);

  std::uint16_t port_ = 0;
  std::unique_ptr<Process> driver_;
  std::string session_;  // "/session/<id>"
};

}  // namespace tessera
