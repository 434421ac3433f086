// Sentences made of texts and numbers. A chain of + on strings becomes several times the code, most of it for
// exceptions in the middle of the chain, and takes that much longer to compile.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace allfold {

// A part of a sentence; it refers to the text that it is made from.
class Part {
  public:
    Part(const char* text) : text_(text) {}
    Part(const std::string& text) : text_(text.c_str()) {}
    template <std::integral Number>
    Part(Number number) : negative_(number < Number{}), number_(static_cast<uint64_t>(number)) {}

    void append_to(std::string& text) const;

  private:
    const char* text_ = nullptr;
    bool negative_ = false;
    uint64_t number_ = 0;
};

std::string joined(std::initializer_list<Part> parts);

}  // namespace allfold
