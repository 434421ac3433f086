#include "shared/text.hpp"

namespace allfold {

void Part::append_to(std::string& text) const {
    if (text_)
        text += text_;
    else
        text += negative_ ? std::to_string(static_cast<int64_t>(number_)) : std::to_string(number_);
}

std::string joined(std::initializer_list<Part> parts) {
    std::string text;
    for (const Part& part : parts) part.append_to(text);
    return text;
}

}  // namespace allfold
