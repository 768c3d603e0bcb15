package io.weir.flink.nativelib;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Where the native library's log lines arrive; called from native threads. */
final class NativeLog {

    private static final int ERROR = 1;
    private static final int WARN = 2;
    private static final int INFO = 3;
    private static final int DEBUG = 4;

    private NativeLog() {}

    /** The highest level that is shown; asked once. */
    static int level() {
        Logger logger = LoggerFactory.getLogger("io.weir.native");
        return logger.isTraceEnabled() ? DEBUG + 1 : logger.isDebugEnabled() ? DEBUG : INFO;
    }

    /**
     * @param level 1 (error) to 5 (trace)
     * @param target the module that logs, such as {@code weir_engine::flush}
     */
    static void log(int level, String target, String message) {
        Logger logger = LoggerFactory.getLogger("io.weir.native." + target.replace("::", "."));
        switch (level) {
            case ERROR:
                logger.error(message);
                break;
            case WARN:
                logger.warn(message);
                break;
            case INFO:
                logger.info(message);
                break;
            case DEBUG:
                logger.debug(message);
                break;
            default:
                logger.trace(message);
        }
    }
}
