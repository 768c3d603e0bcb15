package io.weir.flink;

import org.apache.flink.configuration.ConfigOption;
import org.apache.flink.configuration.MemorySize;
import org.apache.flink.configuration.description.HtmlFormatter;
import org.apache.flink.util.TimeUtils;

import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.lang.reflect.ParameterizedType;
import java.time.Duration;
import java.util.Arrays;
import java.util.Locale;
import java.util.stream.Collectors;

/** Prints {@code docs/options.md}: a table made from the fields of {@link WeirOptions}. */
public final class WeirOptionsDocs {

    private WeirOptionsDocs() {}

    public static void main(String[] arguments) throws IllegalAccessException {
        System.out.print(page());
    }

    /** The whole page in Markdown. */
    public static String page() throws IllegalAccessException {
        StringBuilder page =
                new StringBuilder(
                        "# Options\n\n"
                            + "Generated from `WeirOptions` by `./weir docs`; do not edit. Each can"
                            + " be set in Flink's configuration file or for one job.\n\n"
                            + "| option | default | type | meaning |\n"
                            + "|---|---|---|---|\n");
        for (Field field : WeirOptions.class.getDeclaredFields()) {
            if (Modifier.isPublic(field.getModifiers()) && field.getType() == ConfigOption.class) {
                ConfigOption<?> option = (ConfigOption<?>) field.get(null);
                Class<?> type =
                        (Class<?>)
                                ((ParameterizedType) field.getGenericType())
                                        .getActualTypeArguments()[0];
                page.append("| `")
                        .append(option.key())
                        .append("` | ")
                        .append(defaultValue(option))
                        .append(" | ")
                        .append(typeName(type))
                        .append(" | ")
                        .append(
                                new HtmlFormatter()
                                        .format(option.description())
                                        .replace("|", "\\|"))
                        .append(" |\n");
            }
        }
        return page.toString();
    }

    private static String defaultValue(ConfigOption<?> option) {
        Object value = option.defaultValue();
        if (value == null) {
            return "none";
        }
        if (value instanceof Duration) {
            return TimeUtils.formatWithHighestUnit((Duration) value);
        }
        return value instanceof Enum ? lowerCase((Enum<?>) value) : value.toString();
    }

    private static String typeName(Class<?> type) {
        if (type == MemorySize.class) {
            return "memory size";
        }
        if (type.isEnum()) {
            return Arrays.stream(type.getEnumConstants())
                    .map(value -> "`" + lowerCase((Enum<?>) value) + "`")
                    .collect(Collectors.joining(", "));
        }
        return type.getSimpleName().toLowerCase(Locale.ROOT);
    }

    private static String lowerCase(Enum<?> value) {
        return value.name().toLowerCase(Locale.ROOT);
    }
}
