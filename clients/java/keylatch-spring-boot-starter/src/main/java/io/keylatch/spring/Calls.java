package io.keylatch.spring;

import java.lang.annotation.Annotation;
import java.lang.reflect.Method;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentHashMap;
import org.aopalliance.intercept.MethodInvocation;
import org.springframework.aop.support.AopUtils;
import org.springframework.beans.factory.config.ConfigurableBeanFactory;
import org.springframework.boot.convert.DurationStyle;
import org.springframework.context.expression.BeanFactoryResolver;
import org.springframework.context.expression.MethodBasedEvaluationContext;
import org.springframework.core.DefaultParameterNameDiscoverer;
import org.springframework.core.KotlinDetector;
import org.springframework.core.ReactiveAdapterRegistry;
import org.springframework.core.annotation.AnnotatedElementUtils;
import org.springframework.expression.Expression;
import org.springframework.expression.common.CompositeStringExpression;
import org.springframework.expression.common.LiteralExpression;
import org.springframework.expression.common.TemplateParserContext;
import org.springframework.expression.spel.standard.SpelExpressionParser;

/** What the annotation of a called method says. */
final class Calls {
    private final ConfigurableBeanFactory beans;
    private final DefaultParameterNameDiscoverer names = new DefaultParameterNameDiscoverer();
    private final Map<String, Expression> templates = new ConcurrentHashMap<>();

    Calls(ConfigurableBeanFactory beans) {
        this.beans = beans;
    }

    static Method method(MethodInvocation call) {
        return AopUtils.getMostSpecificMethod(call.getMethod(), call.getThis() == null ? null : AopUtils.getTargetClass(call.getThis()));
    }

    /** The annotation of the method, whose work has to be done when it returns, or when its CompletionStage is. */
    static <A extends Annotation> A annotation(MethodInvocation call, Class<A> type, boolean mayBeStage) {
        Method method = method(call);
        boolean isReactive = KotlinDetector.isSuspendingFunction(method)
            || ReactiveAdapterRegistry.getSharedInstance().getAdapter(method.getReturnType()) != null;
        if (isReactive && !(mayBeStage && CompletionStage.class.isAssignableFrom(method.getReturnType()))) {
            throw new IllegalStateException("@" + type.getSimpleName() + " of " + method + ": it returns before its work is done");
        }
        return AnnotatedElementUtils.findMergedAnnotation(method, type);
    }

    /** What a template comes to. A part that is missing is refused: all such calls would share one name. */
    String text(String template, MethodInvocation call) {
        Expression parsed = templates.computeIfAbsent(template, text ->
            new SpelExpressionParser().parseExpression(beans.resolveEmbeddedValue(text), new TemplateParserContext()));
        MethodBasedEvaluationContext context =
            new MethodBasedEvaluationContext(call.getThis(), method(call), call.getArguments(), names);
        context.setBeanResolver(new BeanFactoryResolver(beans));
        Expression[] parts = parsed instanceof CompositeStringExpression
            ? ((CompositeStringExpression) parsed).getExpressions() : new Expression[] {parsed};
        StringBuilder text = new StringBuilder();
        for (Expression part : parts) {
            String value = part.getValue(context, String.class);
            if (value == null || (value.isEmpty() && !(part instanceof LiteralExpression))) {
                throw new IllegalArgumentException("\"" + part.getExpressionString() + "\" in \"" + template + "\" of " + method(call)
                    + " has no value; a parameter has its name only where it is compiled with -parameters");
            }
            text.append(value);
        }
        return text.toString();
    }

    Duration duration(String text) {
        return DurationStyle.detectAndParse(beans.resolveEmbeddedValue(text));
    }

    /** What a caller gets whose method declares no InterruptedException. */
    static CancellationException interrupted(InterruptedException why) {
        Thread.currentThread().interrupt();
        CancellationException cancelled = new CancellationException("interrupted while it waited");
        cancelled.initCause(why);
        return cancelled;
    }
}
