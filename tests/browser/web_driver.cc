#include "tests/browser/web_driver.h"

#include <array>
#include <cctype>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <sstream>
#include <thread>
#include <utility>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"

namespace tessera {
namespace {

using nlohmann::json;

constexpr int kStartSeconds = 60;
constexpr int kAnswerSeconds = 60;

// A program of the search path; empty where there is none.
std::filesystem::path find_program(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::istringstream directories(path == nullptr ? "" : path);
  for (std::string directory; std::getline(directories, directory, ':');) {
    const std::filesystem::path program = std::filesystem::path(directory) / name;
    if (::access(program.c_str(), X_OK) == 0) {
      return program;
    }
  }
  return {};
}

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

FileDescriptor make_socket() {
  const int made = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  TESSERA_REQUIRE(made >= 0, ErrorCode::kDeviceError, "cannot make a socket");
  return FileDescriptor(made);
}

// One that nobody uses right now.
std::uint16_t free_port() {
  const FileDescriptor socket = make_socket();
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof(address);
  const bool found = ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0 &&
                     ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0;
  TESSERA_REQUIRE(found, ErrorCode::kDeviceError, "no port is free");
  return ntohs(address.sin_port);
}

bool connect_to(const FileDescriptor& socket, std::uint16_t port) {
  const timeval limit{.tv_sec = kAnswerSeconds, .tv_usec = 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  const sockaddr_in address = loopback(port);
  return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

// How many bytes a whole answer has; nothing while its head is not there. Its end is no sign: the
// driver's browsers may hold the connection open.
std::optional<std::size_t> answer_bytes(std::string_view answer) {
  constexpr std::string_view kLength = "Content-Length:";
  const std::size_t head = answer.find("\r\n\r\n");
  const std::size_t length = answer.find(kLength);
  if (head == std::string_view::npos || length > head) {
    return std::nullopt;
  }
  const std::string digits(answer.substr(length + kLength.size(), head - length));
  return head + 4 + std::stoul(digits);
}

// The body of the answer to one request.
std::string http(std::uint16_t port, const std::string& request) {
  const FileDescriptor socket = make_socket();
  TESSERA_REQUIRE(connect_to(socket, port), ErrorCode::kDeviceError, "chromedriver is gone");
  write_all(socket, request, "chromedriver's socket");
  std::string answer;
  std::array<char, 65536> buffer{};
  while (answer.size() < answer_bytes(answer).value_or(answer.size() + 1)) {
    const ssize_t got = ::recv(socket.get(), buffer.data(), buffer.size(), 0);
    TESSERA_REQUIRE(got > 0, ErrorCode::kTimeout, "chromedriver does not answer: {}", request);
    answer.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return answer.substr(answer.find("\r\n\r\n") + 4);
}

std::string from_base64(std::string_view text) {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char letter : text) {
    const std::size_t value = kLetters.find(letter);
    if (value == std::string_view::npos) {
      break;
    }
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    count += 6;
    if (count >= 8) {
      count -= 8;
      bytes += static_cast<char>((bits >> count) & 0xFF);
    }
  }
  return bytes;
}

}  // namespace

std::optional<std::string> Browser::missing() {
  for (const char* name : {"chromium", "chromedriver"}) {
    if (find_program(name).empty()) {
      return format("no {} (Debian packages chromium and chromium-driver)", name);
    }
  }
  return std::nullopt;
}

void Browser::start_driver(const std::filesystem::path& directory) {
  port_ = free_port();
  driver_ = std::make_unique<Process>(
      std::vector<std::string>{
          "/bin/sh",
          "-c",
          format(
              "exec '{}' --port={} >/dev/null 2>&1", find_program("chromedriver").string(), port_)},
      directory);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(kStartSeconds);
  while (!connect_to(make_socket(), port_)) {
    TESSERA_REQUIRE(std::chrono::steady_clock::now() < end,
                    ErrorCode::kTimeout,
                    "chromedriver did not start within {} s",
                    kStartSeconds);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

Browser::Browser(const std::filesystem::path& directory) {
  start_driver(directory);
  // No sandbox: it needs rights that root and containers lack, and the pages are our own. The
  // shared memory of containers is too small for a browser.
  const json options = {{"binary", find_program("chromium").string()},
                        {"args",
                         {"--headless=new",
                          "--no-sandbox",
                          "--disable-dev-shm-usage",
                          "--disable-gpu",
                          "--hide-scrollbars",
                          "--force-device-scale-factor=1",
                          "--no-first-run",
                          "--user-data-dir=" + (directory / "profile").string()}}};
  const json capabilities = {{"alwaysMatch",
                              {{"browserName", "chrome"},
                               {"goog:chromeOptions", options},
                               {"goog:loggingPrefs", {{"browser", "ALL"}}}}}};
  const json session = send("POST", "/session", {{"capabilities", capabilities}});
  session_ = "/session/" + session.at("sessionId").get<std::string>();
}

Browser::~Browser() {
  try {
    send("DELETE", session_);  // ends the browser, which would outlive the driver
  } catch (const std::exception&) {
    return;  // ended already
  }
}

json Browser::send(std::string_view method, const std::string& path, const json& body) {
  const std::string text = method == "POST" ? body.dump() : "";
  const std::string answer = http(port_,
                                  format("{} {} HTTP/1.1\r\nHost: localhost:{}\r\nContent-Type: "
                                         "application/json\r\nContent-Length: {}\r\n"
                                         "Connection: close\r\n\r\n{}",
                                         method,
                                         path,
                                         port_,
                                         text.size(),
                                         text));
  json value = json::parse(answer).at("value");
  TESSERA_REQUIRE(!value.is_object() || !value.contains("error"),
                  ErrorCode::kDeviceError,
                  "{}: {}",
                  path,
                  value.dump());
  return value;
}

json Browser::devtools(const std::string& command, const json& parameters) {
  return send("POST", session_ + "/goog/cdp/execute", {{"cmd", command}, {"params", parameters}});
}

void Browser::set_screen(int width, int height, bool dark) {
  devtools(
      "Emulation.setDeviceMetricsOverride",
      {{"width", width}, {"height", height}, {"deviceScaleFactor", 1}, {"mobile", width < 600}});
  const json scheme = {{"name", "prefers-color-scheme"}, {"value", dark ? "dark" : "light"}};
  devtools("Emulation.setEmulatedMedia", {{"features", json::array({scheme})}});
}

void Browser::open(const std::filesystem::path& page) {
  std::string address = "file://";
  for (const char c : page.string()) {
    const auto byte = static_cast<unsigned char>(c);
    address += std::isalnum(byte) != 0 || c == '/' || c == '.' || c == '-' || c == '_'
                   ? std::string(1, c)
                   : format("%{:02X}", byte);
  }
  send("POST", session_ + "/url", {{"url", address}});
}

json Browser::script(const std::string& body) {
  return send("POST", session_ + "/execute/sync", {{"script", body}, {"args", json::array()}});
}

void Browser::type(const std::vector<std::string>& keys) {
  json actions = json::array();
  for (const std::string& key : keys) {
    actions.push_back({{"type", "keyDown"}, {"value", key}});
    actions.push_back({{"type", "keyUp"}, {"value", key}});
  }
  const json keyboard = {{"type", "key"}, {"id", "keyboard"}, {"actions", actions}};
  send("POST", session_ + "/actions", {{"actions", json::array({keyboard})}});
}

void Browser::point(double x, double y) {
  const json move = {{"type", "pointerMove"},
                     {"duration", 0},
                     {"x", static_cast<int>(x)},
                     {"y", static_cast<int>(y)}};
  const json mouse = {{"type", "pointer"},
                      {"id", "mouse"},
                      {"parameters", {{"pointerType", "mouse"}}},
                      {"actions", json::array({move})}};
  send("POST", session_ + "/actions", {{"actions", json::array({mouse})}});
}

std::vector<std::string> Browser::console() {
  std::vector<std::string> messages;
  for (const json& entry : send("POST", session_ + "/se/log", {{"type", "browser"}})) {
    messages.push_back(entry.at("message"));
  }
  return messages;
}

void Browser::screenshot(const std::filesystem::path& path) {
  const json image = devtools("Page.captureScreenshot", {{"captureBeyondViewport", true}});
  write_file_atomic(path, from_base64(image.at("data").get<std::string>()));
}

}  // namespace tessera
